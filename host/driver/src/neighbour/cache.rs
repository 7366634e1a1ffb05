//! What is known of the neighbours, and what has been asked. Times are in the device's cycles.

use super::wire::Mac;
use std::collections::HashMap;
use std::net::IpAddr;

/// Most neighbours that are learned; beyond, the one heard of longest ago is forgotten.
const MOST: usize = 1024;

/// A neighbour: an address within a VLAN.
pub(super) type Place = (Option<u16>, IpAddr);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Entry {
    /// Set by the caller; nobody's word changes it.
    Fixed(Mac),
    /// Heard at this time.
    Known(Mac, u64),
    /// Asked so many times, last at this time.
    Asked(u32, u64),
}

/// What to do for an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Step {
    Known(Mac),
    /// Ask now.
    Ask,
    /// An answer may still come.
    Wait,
    /// Nobody answered; the next call starts over.
    Nobody,
}

/// How long and how often.
#[derive(Clone, Copy, Debug)]
pub(super) struct Patience {
    /// Between two questions, and after the last one.
    pub retry: u64,
    pub tries: u32,
    /// A neighbour that was not heard of for so long is asked again.
    pub lifetime: u64,
}

#[derive(Default)]
pub(super) struct Cache {
    entries: HashMap<Place, Entry>,
}

impl Cache {
    pub(super) fn fix(&mut self, place: Place, mac: Option<Mac>) {
        match mac {
            Some(mac) => self.entries.insert(place, Entry::Fixed(mac)),
            None => self.entries.remove(&place),
        };
    }

    /// A neighbour says where it is. `new`: worth an entry although nobody asked.
    pub(super) fn heard(&mut self, place: Place, mac: Mac, now: u64, new: bool) {
        match self.entries.get_mut(&place) {
            Some(Entry::Fixed(_)) => {}
            Some(entry) => *entry = Entry::Known(mac, now),
            None if new => {
                self.make_room();
                self.entries.insert(place, Entry::Known(mac, now));
            }
            None => {}
        }
    }

    /// What to do for `place` at `now`; takes it that the caller asks when told to.
    pub(super) fn step(&mut self, place: Place, now: u64, p: &Patience) -> Step {
        let (tries, at) = match self.entries.get(&place) {
            Some(Entry::Fixed(mac)) => return Step::Known(*mac),
            Some(Entry::Known(mac, at)) if now.wrapping_sub(*at) < p.lifetime => return Step::Known(*mac),
            Some(Entry::Asked(tries, at)) => (*tries, *at),
            _ => (0, 0),
        };
        if tries > 0 && now.wrapping_sub(at) < p.retry {
            return Step::Wait;
        }
        if tries == p.tries {
            self.entries.remove(&place);
            return Step::Nobody;
        }
        if tries == 0 {
            self.make_room();
        }
        self.entries.insert(place, Entry::Asked(tries + 1, now));
        Step::Ask
    }

    fn make_room(&mut self) {
        if self.entries.len() < MOST {
            return;
        }
        let age = |e: &Entry| match e {
            Entry::Known(_, at) | Entry::Asked(_, at) => Some(*at),
            Entry::Fixed(_) => None,
        };
        let oldest = self.entries.iter().filter_map(|(k, e)| age(e).map(|at| (at, *k))).min();
        oldest.map(|(_, place)| self.entries.remove(&place));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::Ipv4Addr;

    const MAC: Mac = [2, 0, 0, 0, 0, 7];
    const P: Patience = Patience { retry: 100, tries: 3, lifetime: 10_000 };

    fn place(n: u32) -> Place {
        (Some(4), IpAddr::V4(Ipv4Addr::from(n)))
    }

    #[test]
    fn questions_are_repeated_until_somebody_answers_or_nobody_does() {
        let mut c = Cache::default();
        let steps = |c: &mut Cache, times: &[u64]| times.iter().map(|t| c.step(place(1), *t, &P)).collect::<Vec<_>>();
        use Step::*;
        assert_eq!(
            steps(&mut c, &[0, 50, 99, 100, 150, 200, 299, 300]),
            [Ask, Wait, Wait, Ask, Wait, Ask, Wait, Nobody]
        );
        assert_eq!(steps(&mut c, &[301, 302]), [Ask, Wait]);
        c.heard(place(1), MAC, 310, false);
        assert_eq!(steps(&mut c, &[10_309, 10_310, 10_311]), [Known(MAC), Ask, Wait]);
        // Another VLAN is another place.
        assert_eq!(c.step((None, place(1).1), 0, &P), Ask);
    }

    #[test]
    fn what_is_fixed_stays_and_what_nobody_asked_for_is_not_learned() {
        let mut c = Cache::default();
        c.fix(place(1), Some(MAC));
        c.heard(place(1), [2; 6], 5, true);
        assert_eq!(c.step(place(1), 1 << 60, &P), Step::Known(MAC));
        c.fix(place(1), None);
        c.heard(place(1), MAC, 0, false);
        assert_eq!(c.step(place(1), 0, &P), Step::Ask);
        c.heard(place(2), MAC, 0, true);
        assert_eq!(c.step(place(2), 1, &P), Step::Known(MAC));
    }

    #[test]
    fn the_table_does_not_grow_without_end() {
        let mut c = Cache::default();
        c.fix(place(0), Some(MAC));
        for n in 1..3000 {
            c.heard(place(n), MAC, n.into(), true);
        }
        assert_eq!(c.entries.len(), MOST);
        assert_eq!(c.step(place(0), 0, &P), Step::Known(MAC));
        assert_eq!(c.step(place(2999), 3000, &P), Step::Known(MAC));
        assert_eq!(c.step(place(1), 3000, &P), Step::Ask);
    }
}
