//! The flights that the demo streams, and the names of their airports: real data, inside the binary. See data/README.md.

use std::collections::HashMap;
use std::io::BufReader;

use crate::error::CliError;
use crate::rows::{self, Picks, RowSource};

const FLIGHTS: &[u8] = include_bytes!("../../../../../data/flights.csv.zst");
const AIRPORTS: &str = include_str!("../../../../../data/airports.csv");

/// How many flights there are.
pub(super) const COUNT: u64 = 342_425;

/// The flights in order of departure, as JSON objects; the key is the airport they start from.
pub(super) fn flights() -> Result<Box<dyn RowSource>, CliError> {
    let decoder = zstd::stream::read::Decoder::new(FLIGHTS)
        .map_err(|error| CliError::failure(format!("the flights in the binary: {error}")))?;
    let picks = Picks { key: Some("origin".into()), timestamp: Some("date".into()), ..Picks::default() };
    rows::csv_source(Box::new(BufReader::new(decoder)), &picks)
}

/// City and state of an airport by its code.
pub(super) fn airports() -> HashMap<&'static str, String> {
    let mut names = HashMap::new();
    for line in AIRPORTS.lines().skip(1) {
        let mut fields = line.split(',').map(|field| field.trim_matches('"'));
        if let (Some(code), Some(city), Some(state)) = (fields.next(), fields.next(), fields.next()) {
            names.insert(code, format!("{city}, {state}"));
        }
    }
    names
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rows::Row;

    #[test]
    fn every_flight_reads_and_every_airport_has_a_name() {
        let (mut source, airports, mut row, mut count) = (flights().unwrap(), airports(), Row::default(), 0);
        while source.next(&mut row).unwrap() {
            let key = String::from_utf8(row.key.clone().unwrap()).unwrap();
            assert!(airports.contains_key(key.as_str()), "{key}");
            assert!(row.timestamp_ms.is_some());
            count += 1;
        }
        assert_eq!(count, COUNT);
    }
}
