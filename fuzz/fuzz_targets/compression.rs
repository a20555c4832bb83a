//! Fuzzes `kera_fuzz::targets::compression`; `cargo fuzz run compression` starts it.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| kera_fuzz::targets::compression(data));
