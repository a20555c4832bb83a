//! Fuzzes `kera_fuzz::targets::container`; `cargo fuzz run container` starts it.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| kera_fuzz::targets::container(data));
