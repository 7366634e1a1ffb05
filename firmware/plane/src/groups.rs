//! Multicast groups: which QPs are attached to which. A group has an entry of the GID table as long as it has members, the last that is free.

use crate::{
    Hardware, Outcome, Plane, Refused, check,
    objects::{GID_WORDS, gid_row},
    pairs::QP_FIRST,
    words::{Block, get, up_to},
};
use abi::{
    cmd::{head, mcast, result},
    table::{MEMBER_STEP, MEMBERS, id, member, qp_type},
};

const _: () = assert!(member::LAST.lsb == 0 && up_to(member::QPN) == 2 && MEMBER_STEP == 32);

/// A group, or a place for one.
#[derive(Clone, Copy)]
pub struct Group {
    /// Its row of the GID table, by which it is known, and the number of that. Without a row there is no such group.
    row: [u32; GID_WORDS],
    gid: u32,
    /// Its row of the MEMBER table.
    members: [u32; 1 + MEMBERS],
}

impl Group {
    /// None.
    pub const NONE: Self = Group { row: [0; GID_WORDS], gid: 0, members: [0; 1 + MEMBERS] };

    /// The word of a member; 0: it is none.
    #[inline(never)]
    fn place(&self, n: u32) -> usize {
        let mut i = MEMBERS;
        while i != 0 && self.members[i] != n {
            i -= 1;
        }
        i
    }
}

/// An IP (wire bytes, first lowest) of a group.
pub(crate) fn is_group(is_ip6: bool, ip: &[u32]) -> bool {
    if is_ip6 { ip[0] & 0xff == 0xff } else { ip[0] & 0xf0 == 0xe0 }
}

/// The MAC of such an IP (RFC 1112, RFC 2464), first wire byte lowest.
#[inline(never)]
pub(crate) fn group_mac(is_ip6: bool, ip: &[u32]) -> u64 {
    let (low, last) =
        if is_ip6 { (0x3333 | ip[3] << 16, ip[3]) } else { (0x5e_0001 | (ip[0] << 16 & 0x7f00_0000), ip[0]) };
    low as u64 | (last as u64 >> 16) << 32
}

impl Plane<'_> {
    /// Attaches a QP, or detaches it; the group's entry of the GID table.
    #[inline(never)]
    pub(crate) fn attach(&mut self, hw: &mut impl Hardware, c: &Block, owner: u8, detach: bool) -> Outcome<u32> {
        let n = self.find_qp(get(c, mcast::NUMBER), owner)?;
        // Not the general service QP.
        check(self.qps[n].kind == qp_type::UD && n >= QP_FIRST as usize, head::NUMBER)?;
        let is_ip6 = get(c, mcast::IS_IP6) == 1;
        let ip = &c[mcast::IP_LOW.lsb / 32..][..4];
        check(is_group(is_ip6, ip), mcast::IP_LOW)?;
        let (tagged, vlan) = (get(c, mcast::TAGGED), get(c, mcast::VLAN));
        // A tag of VLAN 0 tells a priority only: such frames are those of the group without a tag.
        check(tagged == 0 || vlan.wrapping_sub(1) < 0xffe, mcast::VLAN)?;
        let row = gid_row(is_ip6, tagged, vlan, group_mac(is_ip6, ip), ip);
        let found = self.find_group(&row);
        if detach {
            let left = found.is_some_and(|at| self.leave(hw, at, n as u32));
            return if left { Ok(0) } else { Err(Refused::at(result::NO_OBJECT, mcast::IP_LOW)) };
        }
        let full = Refused::new(result::NO_ROOM, 0);
        let at = found.or_else(|| self.find_group(&Group::NONE.row)).ok_or(full)?;
        let group = &mut self.groups[at];
        if found.is_none() {
            // It is no address: nobody sends from it, and SET_GID leaves it alone.
            group.gid = self.gids.iter().rposition(|g| !g.valid && g.refs == 0).ok_or(full)? as u32;
            self.gids[group.gid as usize].refs = 1;
            group.row = row;
        }
        if group.place(n as u32) != 0 {
            return Err(Refused::at(result::IN_USE, head::NUMBER));
        }
        let last = if found.is_some() { group.members[0] + 1 } else { 0 };
        *group.members.get_mut(last as usize + 1).ok_or(full)? = n as u32;
        group.members[0] = last;
        hw.commit(id::MEMBER, group.gid, &group.members);
        hw.commit(id::GID, group.gid, &group.row);
        Ok(group.gid)
    }

    /// Place of the group with this row; with none a free place.
    #[inline(never)]
    fn find_group(&self, row: &[u32; GID_WORDS]) -> Option<usize> {
        // Word by word: the library compares bytes.
        self.groups.iter().position(|g| (0..GID_WORDS).all(|i| g.row[i] == row[i]))
    }

    /// Detaches a QP from a group; whether it was a member.
    #[inline(never)]
    pub(crate) fn leave(&mut self, hw: &mut impl Hardware, at: usize, n: u32) -> bool {
        let group = &mut self.groups[at];
        let i = group.place(n);
        if i == 0 {
            return false;
        }
        let last = group.members[0];
        group.members[i] = group.members[last as usize + 1];
        group.members[last as usize + 1] = 0;
        if last != 0 {
            group.members[0] = last - 1;
            hw.commit(id::MEMBER, group.gid, &group.members);
        } else {
            group.row = Group::NONE.row;
            self.gids[group.gid as usize].refs = 0;
            hw.commit(id::GID, group.gid, &group.row);
            hw.commit(id::MEMBER, group.gid, &group.members);
            // Its entry may be another group's next: what has been let in under it is through. A frame is looked up some 20 cycles
            // before it counts as let in; those have passed while the rows were written.
            hw.drain();
        }
        true
    }
}
