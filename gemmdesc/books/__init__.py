"""Books: a library's answers for a model's products, recorded once, so that any machine can follow them without it.

The file format is specified in ``docs/books.md``.
"""

from gemmdesc.books.modules import module_shapes
from gemmdesc.books.reading import BookLibrary, BookReader, EntryReplay, open_reader, replay_entry
from gemmdesc.books.recording import Recording, entry_of, merged_books, record_book
from gemmdesc.books.schema import BOOK_VERSION, Book, Check, Entry
from gemmdesc.books.shapes import LAYOUTS, Shape, ShapeDefaults, grid_shapes, read_shapes, with_tokens
from gemmdesc.books.store import book_digest, read_book, require_book, write_book

__all__ = [
    "BOOK_VERSION",
    "LAYOUTS",
    "Book",
    "BookLibrary",
    "BookReader",
    "Check",
    "Entry",
    "EntryReplay",
    "Recording",
    "Shape",
    "ShapeDefaults",
    "book_digest",
    "entry_of",
    "grid_shapes",
    "merged_books",
    "module_shapes",
    "open_reader",
    "read_book",
    "read_shapes",
    "record_book",
    "replay_entry",
    "require_book",
    "with_tokens",
    "write_book",
]
