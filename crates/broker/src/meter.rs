//! How many bytes a second the streamlets of a node take and give, smoothed, with the busiest by themselves: what a broker tells the
//! coordinators so that they can even out the nodes.
//!
//! Only the arithmetic: it is told what each streamlet has taken since the process started, at times that it is told as well.

use std::collections::HashMap;

use kera_format::{StreamId, StreamletId};
use kera_protocol::StreamletLoad;
use kera_protocol::limits::LOAD_STREAMLETS_MAX;

/// What was appended so long ago counts a third of what is appended now (1/e).
const SMOOTHED_S: f64 = 30.0;
/// A streamlet is measured for so long before it is told of by itself.
const MEASURED_S: f64 = 4.0;

type Place = (StreamId, StreamletId);

/// What is remembered of a streamlet.
#[derive(Clone, Copy, Debug)]
struct Measured {
    bytes: u64,
    /// Bytes a second, as if it had taken nothing before it was first seen.
    rate: f64,
    /// How much of the time that counts it has been seen: 0 to 1.
    seen: f64,
    seen_s: f64,
}

/// See the module.
#[derive(Debug, Default)]
pub struct Meter {
    looked_us: Option<u64>,
    places: HashMap<Place, Measured>,
}

impl Meter {
    /// Bytes a second of all streamlets, and of the busiest, at most [`LOAD_STREAMLETS_MAX`], the busiest first. `took`: bytes that each
    /// streamlet of the node has taken since the process started; those that are not in it are forgotten. One that is new to it is
    /// measured from now on, so that a streamlet that has just come is not taken for a quiet one for half a minute.
    pub fn look(&mut self, now_us: u64, took: impl Iterator<Item = (Place, u64)>) -> (u64, Vec<StreamletLoad>) {
        let since_s = self.looked_us.replace(now_us).map_or(0.0, |before| now_us.saturating_sub(before) as f64 / 1e6);
        let fades = (-since_s / SMOOTHED_S).exp();
        let mut places = HashMap::with_capacity(self.places.len());
        for (place, bytes) in took {
            let next = match self.places.get(&place) {
                // Of a stream that was deleted and made again, or one that has begun anew.
                Some(before) if bytes < before.bytes => Measured { bytes, ..*before },
                Some(before) if since_s > 0.0 => Measured {
                    bytes,
                    rate: before.rate * fades + (bytes - before.bytes) as f64 / since_s * (1.0 - fades),
                    seen: before.seen * fades + (1.0 - fades),
                    seen_s: before.seen_s + since_s,
                },
                Some(before) => *before,
                None => Measured { bytes, rate: 0.0, seen: 0.0, seen_s: 0.0 },
            };
            places.insert(place, next);
        }
        self.places = places;
        let rate = |of: &Measured| if of.seen > 0.0 { (of.rate / of.seen) as u64 } else { 0 };
        let all = self.places.values().map(rate).fold(0u64, u64::saturating_add);
        let mut busiest: Vec<StreamletLoad> = (self.places.iter())
            .filter(|(_, of)| of.seen_s >= MEASURED_S && rate(of) > 0)
            .map(|((stream, streamlet), of)| StreamletLoad {
                stream: *stream,
                streamlet: *streamlet,
                bytes_per_s: rate(of),
            })
            .collect();
        let order = |of: &StreamletLoad| (u64::MAX - of.bytes_per_s, of.stream, of.streamlet);
        if busiest.len() > LOAD_STREAMLETS_MAX {
            busiest.select_nth_unstable_by_key(LOAD_STREAMLETS_MAX, order);
            busiest.truncate(LOAD_STREAMLETS_MAX);
        }
        busiest.sort_unstable_by_key(order);
        (all, busiest)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place(number: u64) -> Place {
        (StreamId(number), StreamletId(0))
    }

    /// Looks each five seconds, for so many of them, at streamlets that take so many bytes a second.
    fn run(meter: &mut Meter, from_s: u64, looks: u64, rates: &[(u64, u64)]) -> (u64, Vec<StreamletLoad>) {
        let mut said = (0, Vec::new());
        for look in 0..=looks {
            let s = from_s + look * 5;
            said = meter.look(s * 1_000_000, rates.iter().map(|(number, rate)| (place(*number), rate * s)));
        }
        said
    }

    #[test]
    fn a_steady_rate_is_told_from_the_first_measurement_on() {
        let mut meter = Meter::default();
        assert_eq!(run(&mut meter, 100, 0, &[(1, 1_000_000)]), (0, Vec::new()), "nothing is known yet");
        run(&mut meter, 100, 1, &[(1, 1_000_000)]);
        let (all, busiest) = run(&mut meter, 105, 0, &[(1, 1_000_000), (2, 10)]);
        assert!((999_000..=1_001_000).contains(&all), "{all}");
        assert_eq!(busiest.len(), 1, "the other one is not measured yet: {busiest:?}");
        let (all, busiest) = run(&mut meter, 105, 4, &[(1, 1_000_000), (2, 10)]);
        assert!((999_000..=1_001_000).contains(&all), "{all}");
        assert_eq!(busiest.iter().map(|of| of.stream.0).collect::<Vec<_>>(), [1, 2]);
    }

    #[test]
    fn what_ends_fades_what_is_gone_is_forgotten_and_a_burst_is_smoothed() {
        let mut meter = Meter::default();
        run(&mut meter, 0, 20, &[(1, 1_000_000)]);
        let stopped = |s: u64| [(place(1), 100_000_000u64)].into_iter().filter(move |_| s > 0);
        let (soon, _) = meter.look(105_000_000, stopped(1));
        let (later, _) = meter.look(200_000_000, stopped(1));
        assert!((700_000..950_000).contains(&soon) && later < 50_000, "{soon} {later}");
        assert_eq!(meter.look(205_000_000, stopped(0)), (0, Vec::new()));
        let (again, _) = meter.look(210_000_000, stopped(1));
        assert_eq!(again, 0, "what it had taken before it came back is not its rate");
    }

    #[test]
    fn only_the_busiest_are_told_of_by_themselves() {
        let mut meter = Meter::default();
        let rates: Vec<(u64, u64)> = (1..=200).map(|number| (number, number * 1000)).collect();
        let (all, busiest) = run(&mut meter, 0, 3, &rates);
        assert_eq!(busiest.len(), LOAD_STREAMLETS_MAX);
        assert_eq!(busiest[0].stream, StreamId(200));
        assert!(busiest.iter().all(|of| of.stream.0 > 136));
        assert!(all.abs_diff(20_100_000) < 1000, "{all}");
    }
}
