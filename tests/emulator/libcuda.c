/* Empty: the symbols are those of the library that it links. */
