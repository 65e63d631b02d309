//! Owns the table of a vault's connections: limits per address, connections that are not admitted yet, and which one gives way.

use std::collections::{BTreeMap, HashMap};
use std::net::{IpAddr, Ipv6Addr};
use std::time::{Duration, Instant};

/// Identifies a connection from its arrival to its end; ascending.
pub type ConnectionId = u64;

/// Limits of the number of connections.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ConnectionLimits {
    /// Admitted connections of all addresses.
    pub settled: usize,
    /// Admitted connections of one address.
    pub settled_each: usize,
    /// Connections not admitted yet, of all unknown addresses; known ones have as many of their own.
    pub waiting: usize,
    /// Connections not admitted yet, of one address.
    pub waiting_each: usize,
    /// Admitted connections above `settled` for known addresses.
    pub reserve: usize,
    /// Addresses remembered as known, because a connection from them was admitted.
    pub known: usize,
}

struct Connection {
    /// `None` for a Unix socket, whose peers are one user.
    network: Option<IpAddr>,
    since: Instant,
    is_settled: bool,
    is_known: bool,
}

/// Connections by id.
pub struct Connections {
    limits: ConnectionLimits,
    last: ConnectionId,
    taken: BTreeMap<ConnectionId, Connection>,
    /// Rank of an address's last admission, ascending.
    known: HashMap<IpAddr, u64>,
    lettings: u64,
}

impl Connections {
    /// Returns an empty table.
    #[must_use]
    pub fn new(limits: ConnectionLimits) -> Self {
        let (taken, known) = (BTreeMap::new(), HashMap::new());
        Self { limits, last: 0, taken, known, lettings: 0 }
    }

    /// Enters a connection from `address`; also returns the one that gives way. That is the longest waiting one of its own
    /// address if that has its share, else of the address with most. Honest clients are admitted within milliseconds.
    pub fn enter(
        &mut self,
        address: Option<IpAddr>,
        now: Instant,
    ) -> (ConnectionId, Option<ConnectionId>) {
        let network = address.map(network_of);
        let is_known = network.is_some_and(|network| self.known.contains_key(&network));
        let lost = self.give_way(network, is_known);
        if let Some(lost) = lost {
            self.taken.remove(&lost);
        }
        self.last += 1;
        self.taken
            .insert(self.last, Connection { network, since: now, is_settled: false, is_known });
        (self.last, lost)
    }

    fn give_way(&self, network: Option<IpAddr>, is_known: bool) -> Option<ConnectionId> {
        let mut counts: HashMap<Option<IpAddr>, (usize, ConnectionId)> = HashMap::new();
        let mut all = 0;
        for (id, connection) in &self.taken {
            if !connection.is_settled && connection.is_known == is_known {
                all += 1;
                counts.entry(connection.network).or_insert((0, *id)).0 += 1;
            }
        }
        let own = counts.get(&network).filter(|_| network.is_some());
        if let Some((_, oldest)) = own.filter(|(count, _)| *count >= self.limits.waiting_each) {
            return Some(*oldest);
        }
        if all < self.limits.waiting {
            return None;
        }
        let most =
            counts.values().max_by_key(|(count, oldest)| (*count, std::cmp::Reverse(*oldest)));
        most.map(|(_, oldest)| *oldest)
    }

    /// Admits a connection; false if there is no room, and then it is removed.
    pub fn settle(&mut self, id: ConnectionId) -> bool {
        let Some(connection) = self.taken.get(&id) else { return false };
        if connection.is_settled {
            return true;
        }
        let (network, is_known) = (connection.network, connection.is_known);
        let settled = || self.taken.values().filter(|connection| connection.is_settled);
        let most = self.limits.settled + if is_known { self.limits.reserve } else { 0 };
        let own = settled().filter(|other| network.is_some() && other.network == network).count();
        if settled().count() >= most || own >= self.limits.settled_each {
            self.taken.remove(&id);
            return false;
        }
        if let Some(connection) = self.taken.get_mut(&id) {
            connection.is_settled = true;
        }
        if let Some(network) = network {
            self.remember(network);
        }
        true
    }

    fn remember(&mut self, network: IpAddr) {
        self.lettings += 1;
        self.known.insert(network, self.lettings);
        if self.known.len() <= self.limits.known {
            return;
        }
        if let Some(oldest) = self.known.iter().min_by_key(|(_, at)| **at).map(|(ip, _)| *ip) {
            self.known.remove(&oldest);
        }
    }

    /// Removes a connection; false if it was removed before.
    pub fn leave(&mut self, id: ConnectionId) -> bool {
        self.taken.remove(&id).is_some()
    }

    /// Removes the connections that have waited longer than `deadline`.
    pub fn expire(&mut self, now: Instant, deadline: Duration) -> Vec<ConnectionId> {
        let is_late = |connection: &Connection| {
            !connection.is_settled && now.duration_since(connection.since) > deadline
        };
        let late = self.taken.iter().filter(|(_, connection)| is_late(connection));
        let late: Vec<_> = late.map(|(id, _)| *id).collect();
        self.taken.retain(|id, _| late.binary_search(id).is_err());
        late
    }
}

/// Network that an address counts for, because one host may have all addresses of an IPv6 network.
fn network_of(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(v6) => {
            let [a, b, c, d, ..] = v6.segments();
            Ipv6Addr::new(a, b, c, d, 0, 0, 0, 0).into()
        }
        v4 @ IpAddr::V4(_) => v4,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHARES: ConnectionLimits = ConnectionLimits {
        settled: 4,
        settled_each: 2,
        waiting: 6,
        waiting_each: 3,
        reserve: 1,
        known: 2,
    };

    #[expect(clippy::unnecessary_wraps, reason = "as a connection is entered")]
    fn from(host: u8) -> Option<IpAddr> {
        Some(IpAddr::from([10, 0, 0, host]))
    }

    #[test]
    fn the_oldest_of_its_own_address_gives_way_to_a_newcomer() {
        let (mut connections, now) = (Connections::new(SHARES), Instant::now());
        let first: Vec<_> = (0..3).map(|_| connections.enter(from(1), now)).collect();
        assert_eq!(first, [(1, None), (2, None), (3, None)]);
        assert_eq!(connections.enter(from(2), now), (4, None));
        assert_eq!(connections.enter(from(1), now), (5, Some(1)));
        assert_eq!(connections.enter(from(1), now), (6, Some(2)));
    }

    #[test]
    fn where_all_places_are_taken_the_address_with_most_gives_way() {
        let (mut connections, now) = (Connections::new(SHARES), Instant::now());
        for host in [1, 2, 2, 2, 3, 4] {
            assert_eq!(connections.enter(from(host), now).1, None);
        }
        assert_eq!(connections.enter(from(5), now), (7, Some(2)));
    }

    #[test]
    fn who_is_known_does_not_wait_among_unknown_addresses() {
        let (mut connections, now) = (Connections::new(SHARES), Instant::now());
        let (friend, _) = connections.enter(from(9), now);
        assert!(connections.settle(friend));
        for host in 1..=6 {
            connections.enter(from(host), now);
        }
        let (again, _) = connections.enter(from(9), now);
        for host in 10..=30 {
            assert_ne!(connections.enter(from(host), now).1, Some(again));
        }
        assert!(connections.settle(again));
    }

    #[test]
    fn places_inside_are_shared_and_some_are_kept_for_who_is_known() {
        let (mut connections, now) = (Connections::new(SHARES), Instant::now());
        let mut settle = |host| {
            let (id, _) = connections.enter(from(host), now);
            connections.settle(id)
        };
        assert_eq!([1, 1, 1].map(&mut settle), [true, true, false]);
        assert_eq!([2, 2, 3].map(&mut settle), [true, true, false]);
        let (friend, _) = connections.enter(from(2), now);
        assert!(!connections.settle(friend), "its address has its share");
        connections.leave(1);
        let (friend, _) = connections.enter(from(1), now);
        assert!(connections.settle(friend));
        connections.leave(2);
        let mut connections = Connections::new(ConnectionLimits { settled_each: 9, ..SHARES });
        let (friend, _) = connections.enter(from(1), now);
        assert!(connections.settle(friend));
        for _ in 0..3 {
            let (id, _) = connections.enter(from(2), now);
            assert!(connections.settle(id));
        }
        let unknown = connections.enter(from(3), now).0;
        assert!(!connections.settle(unknown));
        let friend = connections.enter(from(1), now).0;
        assert!(connections.settle(friend), "the reserve");
    }

    #[test]
    fn addresses_are_forgotten_in_turn() {
        let (mut connections, now) =
            (Connections::new(ConnectionLimits { settled: 99, ..SHARES }), Instant::now());
        for host in 1..=3 {
            let (id, _) = connections.enter(from(host), now);
            assert!(connections.settle(id));
        }
        assert_eq!(connections.known.len(), 2);
        assert!(!connections.known.contains_key(&from(1).unwrap()));
    }

    #[test]
    fn who_is_not_let_in_in_time_has_no_place() {
        let (mut connections, now) = (Connections::new(SHARES), Instant::now());
        let (friend, _) = connections.enter(from(1), now);
        assert!(connections.settle(friend));
        let (unknown, _) = connections.enter(from(2), now);
        let deadline = Duration::from_secs(5);
        assert_eq!(connections.expire(now + deadline, deadline), []);
        assert_eq!(connections.expire(now + deadline * 2, deadline), [unknown]);
        assert!(!connections.leave(unknown));
        assert!(connections.leave(friend));
    }

    #[test]
    fn a_network_of_ipv6_is_one_address() {
        let [one, two, other] =
            ["2001:db8::1", "2001:db8::2:0:0:1", "2001:db8:0:1::1"].map(|ip| ip.parse().unwrap());
        assert_eq!(network_of(one), network_of(two));
        assert_ne!(network_of(one), network_of(other));
        let mapped: IpAddr = "::ffff:10.0.0.1".parse().unwrap();
        assert_eq!(Some(network_of(mapped)), from(1));
    }
}
