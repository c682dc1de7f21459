"""Getting profiles: stores, the session catalog, the local file cache, the XSpace scan, engines and the result store.

A plain library without Ray in it: `Catalog` finds sessions, `FileCache` brings their files near, `Parser` turns them
into tool data in child processes, and `ResultStore` keeps what was made.
"""
