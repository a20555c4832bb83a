//! The persistence manager: closed segments in container files on disk, and back on catch-up reads (thesis 7.2.1).
