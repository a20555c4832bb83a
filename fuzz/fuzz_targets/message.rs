//! Fuzzes `kera_fuzz::targets::message`; `cargo fuzz run message` starts it.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| kera_fuzz::targets::message(data));
