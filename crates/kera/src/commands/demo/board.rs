//! What the consumers of the demo have counted: shared by the consumers, which write, and the view, which reads. All on
//! one thread.

use std::cell::RefCell;
use std::collections::HashMap;
use std::rc::Rc;

use serde::Deserialize;

/// Shared by tasks of one thread.
pub(super) type Shared = Rc<RefCell<Board>>;

/// The counts.
#[derive(Default)]
pub(super) struct Board {
    /// Flights written.
    pub(super) written: u64,
    /// Bytes of their values.
    pub(super) bytes: u64,
    /// Flights read, by both consumers.
    pub(super) read: u64,
    /// Of those, by each consumer.
    pub(super) read_by: [u64; 2],
    /// Minutes of delay of the flights that were late, all together.
    pub(super) airports: HashMap<Vec<u8>, Airport>,
    /// The departure of the latest flight read, milliseconds since 1970.
    pub(super) latest_ms: i64,
    /// Values that were no flights; there are none.
    pub(super) malformed: u64,
    /// What happens right now, for the view.
    pub(super) phase: String,
}

/// What was counted for one airport.
#[derive(Default, Clone, Copy)]
pub(super) struct Airport {
    /// Flights from there.
    pub(super) flights: u64,
    /// Of those, 15 minutes late or more.
    pub(super) late: u64,
    /// Minutes of delay, all together; early flights count against it.
    pub(super) delay: i64,
}

#[derive(Deserialize)]
struct Flight {
    delay: i64,
}

impl Board {
    /// Counts a flight that a consumer has read.
    pub(super) fn count(&mut self, consumer: usize, origin: Option<&[u8]>, value: &[u8], departure_ms: Option<i64>) {
        self.read += 1;
        self.read_by[consumer] += 1;
        self.latest_ms = self.latest_ms.max(departure_ms.unwrap_or(0));
        let (Some(origin), Ok(flight)) = (origin, serde_json::from_slice::<Flight>(value)) else {
            self.malformed += 1;
            return;
        };
        if !self.airports.contains_key(origin) {
            self.airports.insert(origin.to_vec(), Airport::default());
        }
        if let Some(airport) = self.airports.get_mut(origin) {
            airport.flights += 1;
            airport.late += u64::from(flight.delay >= 15);
            airport.delay += flight.delay;
        }
    }

    /// The airports with most flights.
    pub(super) fn top(&self, count: usize) -> Vec<(String, Airport)> {
        let mut all: Vec<(String, Airport)> =
            self.airports.iter().map(|(code, a)| (String::from_utf8_lossy(code).into_owned(), *a)).collect();
        all.sort_by(|(a, x), (b, y)| y.flights.cmp(&x.flights).then_with(|| a.cmp(b)));
        all.truncate(count);
        all
    }
}
