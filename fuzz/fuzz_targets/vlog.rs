//! Fuzzes `kera_fuzz::targets::vlog`; `cargo fuzz run vlog` starts it.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| kera_fuzz::targets::vlog(data));
