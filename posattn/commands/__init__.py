"""The verbs of ``posattn``, one file each: a verb reads its options, calls the library and prints what comes back."""
