"""Writing several modules of a package as few files that a person can review.

`source_modules` reads modules into statements, and `scopes` tells what each name stands for. `reached_code` keeps the
statements that are needed, `unique_names` ends clashes of names, and `writing` puts the files together.
"""
