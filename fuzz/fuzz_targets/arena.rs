//! Fuzzes `kera_fuzz::targets::arena`; `cargo fuzz run arena` starts it.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| kera_fuzz::targets::arena(data));
