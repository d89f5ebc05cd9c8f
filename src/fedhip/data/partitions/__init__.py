"""Who holds which rows: schemes, the manifest, its picture, and clients' styles."""
