"""Holds the storage class, the plug-in and the names of an engine of SGLang, which reaches vaults by its HiCache."""
