//! Fuzzes `kera_fuzz::targets::chunk`; `cargo fuzz run chunk` starts it.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| kera_fuzz::targets::chunk(data));
