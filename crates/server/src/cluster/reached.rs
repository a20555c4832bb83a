//! Whether others reach a node where it says that it is, as far as its configuration tells.

use std::net::IpAddr;

use crate::config::{Config, Mistake, Mistakes};
use crate::fatal::Fatal;

/// A node that tells a cluster of other machines to reach it at a loopback address would be in it, and nobody would reach it.
///
/// Of Kafka clients only what is listened on is looked at: where a person has said what they are told, as the end of a tunnel on the machine of each of them,
/// that is well wherever they have one. Who has none is warned: see [`tell_unheard`].
pub(super) fn check_reachable(config: &Config) -> Result<(), Fatal> {
    let seed = config.cluster.join.as_deref().unwrap_or_default();
    if crate::node::resolve(seed).is_err() || is_loopback(seed) {
        return Ok(());
    }
    // One that nobody has set is told nobody: see `kafka_told`.
    let kafka = config.kafka_address().filter(|_| config.kafka.advertised.is_none() && !config.kafka_by_default);
    let told = [
        ("cluster.listen", Some(config.cluster_address()), "--cluster-listen or --cluster-advertised"),
        ("network.listen", Some(config.native_address()), "--listen or --advertised"),
        ("kafka.listen", kafka, "--kafka-listen or --kafka-advertised"),
    ];
    let told = told.into_iter().filter_map(|(setting, address, flags)| Some((setting, address?, flags)));
    let wrong = told.filter(|(_, address, _)| is_loopback(address)).map(|(setting, address, flags)| Mistake {
        place: String::new(),
        setting: setting.to_owned(),
        message: format!("{seed} is on another machine, which cannot connect to {address}; say with {flags} where this node is reached"),
    });
    let wrong: Vec<Mistake> = wrong.collect();
    if wrong.is_empty() { Ok(()) } else { Err(Fatal::Config(Mistakes(wrong))) }
}

/// Whether an address is of this machine alone: of one that is listened on, or connected to from here.
fn is_loopback(address: &str) -> bool {
    crate::node::resolve(address).is_ok_and(|at| at.ip().is_loopback())
}

/// Whether an address is of the machine alone that is told of it, whichever that is. A name is not, but for `localhost`: a machine may know its own one as a
/// loopback address, as Debian's do, where others know where it is.
fn is_loopback_to_all(address: &str) -> bool {
    let host = address.rsplit_once(':').map_or(address, |(host, _)| host);
    let host = host.trim_start_matches('[').trim_end_matches(']');
    host.eq_ignore_ascii_case("localhost") || host.parse::<IpAddr>().is_ok_and(|ip| ip.to_canonical().is_loopback())
}

/// Whether the cluster is of this machine alone, as far as this node can tell: it joins it at a loopback address, or founds it and listens for others at one. What
/// is advertised tells only of one that listens at all its addresses, which says nothing, and only if it [is one for everybody](is_loopback_to_all).
fn is_of_one_machine(config: &Config) -> bool {
    let cluster = &config.cluster;
    if let Some(seed) = &cluster.join {
        return is_loopback(seed);
    }
    let told = cluster.advertised.as_deref().filter(|_| is_unspecified(&cluster.listen));
    told.map_or_else(|| is_loopback(&cluster.listen), is_loopback_to_all)
}

/// Whether an address that is listened on is all of the machine's.
fn is_unspecified(address: &str) -> bool {
    crate::node::resolve(address).is_ok_and(|at| at.ip().is_unspecified())
}

fn is_kafka_by_default(config: &Config) -> bool {
    config.kafka_by_default && config.kafka.advertised.is_none()
}

/// Where others tell Kafka clients to connect to this node, if they can. What it has when nobody has set one is an address of its own machine alone: clients of another machine that
/// were told of it would connect to theirs, and there perhaps to another node of the cluster.
pub(super) fn kafka_told(config: &Config) -> Option<&str> {
    config.kafka_address().filter(|_| !is_kafka_by_default(config) || is_of_one_machine(config))
}

/// Says at each start what keeps Kafka clients of other machines from this node, if something does.
pub(super) fn tell_unheard(config: &Config) {
    if let Some(unheard) = unheard(config) {
        tracing::warn!("{unheard}");
    }
}

/// What keeps them from it: nobody has said where they reach it, or somebody has named an address that is of each machine alone.
fn unheard(config: &Config) -> Option<String> {
    let address = config.kafka_address().filter(|_| !is_of_one_machine(config))?;
    if is_kafka_by_default(config) {
        return Some(format!(
            "nobody has said where Kafka clients reach this node, and {address} is on this machine alone: other nodes do not tell them of it, and they do not reach what it leads. Say where \
             with --kafka-listen HOST:PORT, or with --kafka-listen none that there are none"
        ));
    }
    let is_in_vain = match config.kafka.advertised.is_some() {
        true => is_loopback_to_all(address),
        false => is_loopback(address),
    };
    is_in_vain.then(|| {
        format!(
            "all nodes tell Kafka clients to connect to {address} for what this node leads, which is of their own machine to those of another one. Unless this node is reached there on each \
             of their machines, say with --kafka-listen or --kafka-advertised where it is"
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A node of a cluster of several machines.
    fn config(join: Option<&str>) -> Config {
        let mut config = Config { kafka_by_default: true, ..Config::default() };
        config.cluster.node = Some(2);
        config.cluster.listen = "192.0.2.2:7072".into();
        config.cluster.join = join.map(str::to_owned);
        config.network.listen = "192.0.2.2:7070".into();
        config
    }

    #[test]
    fn others_tell_kafka_clients_of_no_address_that_is_of_one_machine_alone() {
        let mut config = config(Some("192.0.2.1:7072"));
        assert_eq!(kafka_told(&config), None);
        check_reachable(&config).expect("without Kafka clients it is well");
        config.kafka.advertised = Some("192.0.2.2:9092".into());
        assert_eq!(kafka_told(&config), Some("192.0.2.2:9092"));
        check_reachable(&config).expect("they reach it");
        // Who says so gets an error, as for the other addresses.
        (config.kafka.advertised, config.kafka_by_default) = (None, false);
        let error = check_reachable(&config).expect_err("nobody reaches it").to_string();
        assert!(error.contains("kafka.listen: 192.0.2.1:7072 is on another machine, which cannot"), "{error}");
        assert!(error.contains("connect to 127.0.0.1:9092; say with --kafka-listen"), "{error}");
        config.kafka.listen = None;
        check_reachable(&config).expect("there are none");
        assert_eq!((kafka_told(&config), unheard(&config)), (None, None));
    }

    /// A name that this machine knows as its own loopback address says nothing of the others.
    #[test]
    fn what_nobody_has_set_is_told_in_a_cluster_of_one_machine_whatever_is_advertised() {
        for join in [None, Some("192.0.2.1:7072")] {
            let mut config = config(join);
            config.network.advertised = Some("localhost:7070".into());
            assert_eq!(kafka_told(&config), None, "{join:?}");
            let said = unheard(&config).expect("it is told");
            assert!(
                said.contains("nobody has said where") && said.contains("127.0.0.1:9092 is on this machine"),
                "{said}"
            );
        }
        let mut first = config(None);
        first.cluster.listen = "127.0.0.1:7072".into();
        for config in [first, config(Some("127.0.0.1:7072"))] {
            assert_eq!((kafka_told(&config), unheard(&config)), (Some("127.0.0.1:9092"), None));
        }
    }

    #[test]
    fn of_a_founder_that_listens_at_all_addresses_what_others_are_told_tells_whether_it_is_of_one_machine() {
        for (listen, told, is_one) in [
            ("0.0.0.0:7072", Some("127.0.0.1:7072"), true),
            ("[::]:7072", Some("localhost:7072"), true),
            ("0.0.0.0:7072", Some("192.0.2.1:7072"), false),
            ("0.0.0.0:7072", None, false),
            ("192.0.2.2:7072", Some("127.0.0.1:7072"), false),
        ] {
            let mut config = config(None);
            config.cluster.listen = listen.into();
            config.cluster.advertised = told.map(str::to_owned);
            assert_eq!(kafka_told(&config), is_one.then_some("127.0.0.1:9092"), "{listen} {told:?}");
            assert_eq!(unheard(&config).is_none(), is_one, "{listen} {told:?}");
        }
    }

    /// Who has a tunnel on the machine of each client says so, and could not join.
    #[test]
    fn who_says_that_kafka_clients_reach_it_on_their_own_machines_is_warned_at_each_start_and_not_refused() {
        for join in [None, Some("192.0.2.1:7072")] {
            for told in ["localhost:19092", "127.0.0.1:19092", "[::1]:19092"] {
                let mut config = Config { kafka_by_default: false, ..config(join) };
                config.kafka.advertised = Some(told.into());
                check_reachable(&config).expect("somebody wants it so");
                assert_eq!(kafka_told(&config), Some(told));
                let said = unheard(&config).expect("it is told");
                assert!(said.contains(told) && said.contains("--kafka-advertised"), "{said}");
                config.kafka.advertised = Some("kafka.example:9092".into());
                assert_eq!(unheard(&config), None);
            }
            // As it is listened on, for a first node too, which nobody refuses.
            let config = Config { kafka_by_default: false, ..config(join) };
            assert!(unheard(&config).expect("it is told").contains("127.0.0.1:9092"), "{join:?}");
        }
        let mut one_machine = Config { kafka_by_default: false, ..config(Some("127.0.0.1:7072")) };
        one_machine.kafka.advertised = Some("localhost:9092".into());
        assert_eq!(unheard(&one_machine), None);
    }
}
