//! Nodes of a cluster in processes on this machine.

use serde_json::Value;

use super::{Node, Place, eventually};

/// Ports on which nothing listens, and which the system takes for nobody's connection while a node is down.
pub fn free_ports<const COUNT: usize>() -> [u16; COUNT] {
    kera_bench::ports::free().expect("free ports").map(|address| address.port())
}

/// So many of them next to one another.
pub fn free_ports_in_a_row<const COUNT: usize>() -> [u16; COUNT] {
    loop {
        let ports = free_ports::<COUNT>();
        if ports.windows(2).all(|two| two[1] == two[0] + 1) {
            return ports;
        }
    }
}

/// A node that can be started again.
pub struct Member {
    pub place: Place,
    pub flags: Vec<String>,
}

impl Member {
    pub fn new(number: usize, native: u16, cluster: u16, join: Option<u16>, more: &[&str]) -> Member {
        let place = Place::new();
        let mut flags = place.flags();
        let listen = flags.iter().position(|flag| flag == "--listen").expect("it is there") + 1;
        flags[listen] = format!("127.0.0.1:{native}");
        // Others tell of this one too.
        let [kafka] = free_ports();
        let listen = flags.iter().position(|flag| flag == "--kafka-listen").expect("it is there") + 1;
        flags[listen] = format!("127.0.0.1:{kafka}");
        flags.extend(["--node".into(), number.to_string()]);
        flags.extend(["--cluster-listen".into(), format!("127.0.0.1:{cluster}")]);
        if let Some(join) = join {
            flags.extend(["--join".into(), format!("127.0.0.1:{join}")]);
        }
        for flag in more {
            // What is said here stands for what every node is told.
            if let Some(at) = flags.iter().position(|known| flag.starts_with("--") && known == flag) {
                flags.drain(at..at + 2);
            }
            flags.push((*flag).to_owned());
        }
        Member { place, flags }
    }

    pub fn start(&self) -> Node {
        let mut node = Node::start_flags(&self.flags);
        let expected =
            ["is silent", "joins again", "cannot join yet", "cannot join again", "waits for the", "has founded"];
        // Where processors are busy it may be taken for lost while it starts.
        let of_a_loss = ["was declared lost", "are not taken over yet", "is not rebuilt yet"];
        for words in expected.into_iter().chain(of_a_loss) {
            node.expect_warning(words);
        }
        node
    }
}

pub fn cluster(node: &Node) -> Value {
    node.json("status")["cluster"].clone()
}

pub fn voters(node: &Node) -> usize {
    let nodes = cluster(node)["nodes"].as_array().cloned().unwrap_or_default();
    nodes.iter().filter(|node| node["votes"] == true).count()
}

/// Three nodes, told to take all warnings that a loss brings.
pub fn three_nodes(ports: &[u16]) -> (Vec<Member>, Vec<Option<Node>>) {
    some_nodes(3, ports)
}

/// So many, all of which vote. Two ports for each.
pub fn some_nodes(count: usize, ports: &[u16]) -> (Vec<Member>, Vec<Option<Node>>) {
    some_nodes_with(count, ports, &[])
}

/// The same with flags.
pub fn some_nodes_with(count: usize, ports: &[u16], more: &[&str]) -> (Vec<Member>, Vec<Option<Node>>) {
    let members: Vec<Member> = (0..count)
        .map(|at| Member::new(at + 1, ports[at], ports[count + at], (at > 0).then_some(ports[count]), more))
        .collect();
    let mut nodes: Vec<Option<Node>> = members.iter().map(|member| Some(member.start())).collect();
    for node in nodes.iter_mut().flatten() {
        node.expect_warning("");
    }
    eventually("coordinators that vote", || nodes.iter().flatten().all(|node| voters(node) == count));
    (members, nodes)
}

pub fn start_again(member: &Member) -> Node {
    let mut node = member.start();
    node.expect_warning("");
    node
}

/// Nodes that are live, as one of them sees it.
pub fn live(node: &Node) -> usize {
    let nodes = cluster(node)["nodes"].as_array().cloned().unwrap_or_default();
    nodes.iter().filter(|node| node["state"] == "live").count()
}
