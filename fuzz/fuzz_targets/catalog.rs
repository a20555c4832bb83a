//! Fuzzes `kera_fuzz::targets::catalog`; `cargo fuzz run catalog` starts it.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| kera_fuzz::targets::catalog(data));
