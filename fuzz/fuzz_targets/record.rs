//! Fuzzes `kera_fuzz::targets::record`; `cargo fuzz run record` starts it.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| kera_fuzz::targets::record(data));
