//! What etcd's command-line tools have in common: commands, flags and help, and Go's way with numbers, quotes, JSON and tables.

#![forbid(unsafe_code)]
