/* A stand-in for libcublasLt on the CPU: the functions that the adapter calls, with float32 products on host memory.
 *
 * An algo's 16 words are the nine config attributes, then what the query was told: workspace limit, reduction mask,
 * alignments A to D, and the op flags.  m = 13 is refused with a status, m = 14 by an empty list.
 */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define OK 0
#define INVALID 7
#define UNSUPPORTED 15
#define ATTRIBUTES 9

typedef struct { int32_t attribute[8]; const float *bias, *scale[4]; int32_t bias_type; } Matmul;
typedef struct { int32_t type, order; uint64_t rows, cols; int64_t ld; int32_t count; int64_t stride; } Layout;
typedef struct { uint64_t workspace; uint32_t value[9]; } Preference;
typedef struct { int32_t word[16]; } Algo;
typedef struct { Algo algo; size_t workspace; int state; float waves; int reserved[4]; } Result;

size_t cublasLtGetVersion(void) { return 130100; }
int cublasLtCreate(void **handle) { *handle = malloc(1); return OK; }
int cublasLtDestroy(void *handle) { free(handle); return OK; }

int cublasLtMatmulDescCreate(void **out, int compute, int scale) {
    Matmul *d = calloc(1, sizeof *d);
    d->attribute[0] = compute; d->attribute[1] = scale; *out = d; return OK;
}
int cublasLtMatmulDescDestroy(void *d) { free(d); return OK; }
int cublasLtMatmulDescSetAttribute(Matmul *d, int a, const void *v, size_t n) {
    if (a == 8 || (a >= 17 && a <= 20)) {
        if (n != 8) return INVALID;
        memcpy(a == 8 ? (void *)&d->bias : (void *)&d->scale[a - 17], v, 8); return OK;
    }
    if (a == 26) { if (n != 4) return INVALID; memcpy(&d->bias_type, v, 4); return OK; }
    if (a == 25) return n == 1 ? OK : INVALID;
    if (a < 0 || a > 7 || n != 4) return INVALID;
    memcpy(&d->attribute[a], v, 4); return OK;
}

int cublasLtMatrixLayoutCreate(void **out, int type, uint64_t rows, uint64_t cols, int64_t ld) {
    Layout *d = calloc(1, sizeof *d);
    d->type = type; d->rows = rows; d->cols = cols; d->ld = ld; d->count = 1; *out = d; return OK;
}
int cublasLtMatrixLayoutDestroy(void *d) { free(d); return OK; }
int cublasLtMatrixLayoutSetAttribute(Layout *d, int a, const void *v, size_t n) {
    if (a == 5) { if (n != 4) return INVALID; memcpy(&d->count, v, 4); return OK; }
    void *to = a == 6 ? (void *)&d->stride : a == 2 ? (void *)&d->rows : a == 3 ? (void *)&d->cols : a == 4 ? (void *)&d->ld : 0;
    if (!to || n != 8) return INVALID;
    memcpy(to, v, 8); return OK;
}

int cublasLtMatmulPreferenceCreate(void **out) { *out = calloc(1, sizeof(Preference)); return OK; }
int cublasLtMatmulPreferenceDestroy(void *d) { free(d); return OK; }
int cublasLtMatmulPreferenceSetAttribute(Preference *d, int a, const void *v, size_t n) {
    if (a == 1) { if (n != 8) return INVALID; memcpy(&d->workspace, v, 8); return OK; }
    if (a < 0 || a > 8 || n != 4) return INVALID;
    memcpy(&d->value[a], v, 4); return OK;
}

static int size_of(int a) { return a == 7 || a == 8 ? 2 : 4; }
int cublasLtMatmulAlgoConfigGetAttribute(const Algo *x, int a, void *v, size_t n, size_t *written) {
    if (a < 0 || a >= ATTRIBUTES || n != (size_t)size_of(a)) return INVALID;
    memcpy(v, &x->word[a], n); *written = n; return OK;
}
int cublasLtMatmulAlgoConfigSetAttribute(Algo *x, int a, const void *v, size_t n) {
    if (a < 1 || a >= ATTRIBUTES || n != (size_t)size_of(a)) return INVALID;
    x->word[a] = 0; memcpy(&x->word[a], v, n); return OK;
}
int cublasLtMatmulAlgoCapGetAttribute(const Algo *x, int a, void *v, size_t n, size_t *written) { return UNSUPPORTED; }
int cublasLtMatmulAlgoInit(void *h, int compute, int scale, int a, int b, int c, int d, int id, Algo *x) {
    if (id < 0 || id > 99) return INVALID;
    memset(x, 0, sizeof *x); x->word[0] = id; return OK;
}

int cublasLtMatmulAlgoGetHeuristic(void *h, Matmul *m, Layout *a, Layout *b, Layout *c, Layout *d, Preference *p,
                                   int wanted, Result *r, int *count) {
    *count = 0;
    if (d->rows == 13) return UNSUPPORTED;
    if (d->rows == 14) return OK;
    memset(r, 0, sizeof *r);
    int32_t *w = r->algo.word;
    w[0] = 66; w[1] = (int32_t)(d->rows & 0xff); w[2] = 1 + (d->cols > 100); w[5] = (int32_t)a->ld; w[6] = 35; w[8] = 3;
    w[9] = (int32_t)p->workspace; w[10] = (int32_t)p->value[3];
    for (int i = 0; i < 4; i++) w[11 + i] = (int32_t)p->value[5 + i];
    w[15] = m->attribute[3] + 2 * m->attribute[4];
    r->workspace = w[2] > 1 ? 4096 : 0;
    *count = 1; return OK;
}

static int shapes_ok(Matmul *m, Layout *a, Layout *b, Layout *d) {
    uint64_t k = m->attribute[3] ? a->rows : a->cols;
    return (m->attribute[3] ? a->cols : a->rows) == d->rows && (m->attribute[4] ? b->rows : b->cols) == d->cols
        && (m->attribute[4] ? b->cols : b->rows) == k;
}
int cublasLtMatmulAlgoCheck(void *h, Matmul *m, Layout *a, Layout *b, Layout *c, Layout *d, const Algo *x, Result *r) {
    if (!shapes_ok(m, a, b, d)) return INVALID;
    if (x->word[0] == 99) return UNSUPPORTED;
    memset(r, 0, sizeof *r); r->algo = *x; r->workspace = x->word[0] == 98 ? (size_t)1 << 40 : 4096; return OK;
}

int cublasLtMatmul(void *h, Matmul *m, const float *alpha, const float *A, Layout *a, const float *B, Layout *b,
                   const float *beta, const float *C, Layout *c, float *D, Layout *d, const Algo *x, void *workspace,
                   size_t workspace_bytes, void *stream) {
    if (!shapes_ok(m, a, b, d) || (*beta == 0 && C != D)) return INVALID;
    if (x->word[0] == 99) return 13;
    if (x->word[11] && ((uintptr_t)A % x->word[11] || (uintptr_t)B % x->word[12] || (uintptr_t)D % x->word[14])) return UNSUPPORTED;
    uint64_t k = m->attribute[3] ? a->rows : a->cols;
    int biased = m->attribute[7] & 4, relu = m->attribute[7] & 2;
    if (biased && (!m->bias || m->bias_type != d->type)) return INVALID;
    for (int32_t batch = 0; batch < d->count; batch++, A += a->stride, B += b->stride, C += c->stride, D += d->stride)
        for (uint64_t j = 0; j < d->cols; j++)
            for (uint64_t i = 0; i < d->rows; i++) {
                float sum = 0;
                for (uint64_t t = 0; t < k; t++)
                    sum += (m->attribute[3] ? A[t + i * a->ld] : A[i + t * a->ld]) * (m->attribute[4] ? B[j + t * b->ld] : B[t + j * b->ld]);
                sum *= *alpha;
                if (*beta != 0) sum += *beta * C[i + j * c->ld];
                if (biased) sum += m->bias[i];
                D[i + j * d->ld] = relu && sum <= 0 ? 0 : sum;
            }
    return OK;
}
