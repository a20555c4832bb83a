//! Fuzzes `kera_fuzz::targets::segment`; `cargo fuzz run segment` starts it.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| kera_fuzz::targets::segment(data));
