"""Finding out, from outside, which descriptor a library's answers compute."""
