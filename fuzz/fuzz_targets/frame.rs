//! Fuzzes `kera_fuzz::targets::frame`; `cargo fuzz run frame` starts it.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| kera_fuzz::targets::frame(data));
