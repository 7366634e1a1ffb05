//! Rates of queue pairs: what a program asks for, in what the device counts by.

use crate::device::Device;
use crate::function::{Error, Result};
use crate::qp::{Qp, Rts, State, Transport};
use abi::cmd::{BURST, QUOTA, attr};
use abi::table::{pace, pace_period, qp_state};

/// How fast a queue pair may send. It may be ahead by `burst`, and by two turns of 4 KiB of payload with their headers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RateLimit {
    /// Kilobits a second on the wire, of its packets from Ethernet header to FCS. READ responses that it sends count, ACKs do not. Frames of
    /// datagrams count as those of IPv4 without tag.
    pub kbps: u64,
    /// Bytes that it may send at once after it was idle; `None`: what it may send in 10 us, or in two periods of the device,
    /// and 16 KiB at least. The device counts them in KiB, up to 255; it has to have what the rate gives in a period of the device (1 us for 256 queue pairs).
    pub burst: Option<u32>,
}

impl RateLimit {
    /// So many kilobits a second, with a burst that fits.
    pub const fn kbps(kbps: u64) -> Self {
        RateLimit { kbps, burst: None }
    }

    /// Quota and burst of a device with this clock and so many queue pairs.
    fn in_units(&self, mhz: u32, qps: u32) -> Result<[u64; 2]> {
        // Bytes x 2^12 in a period, so rounded by 1 in 200 at most.
        let period = pace_period(qps as usize) as u128;
        let unit = 8 * u128::from(mhz) * 1_000;
        let quota = (u128::from(self.kbps) * (period << 12) + unit / 2) / unit;
        let (least, most) = (100, u128::from(pace::QUOTA.max()));
        if !(least..=most).contains(&quota) {
            let kbps = |quota: u128| quota * unit / (period << 12);
            return Err(Error::new(format!("a rate of {} kb/s", self.kbps)).hint(format!(
                "{} to {} kb/s are possible",
                kbps(least) + 1,
                kbps(most)
            )));
        }
        let quota = quota as u64;
        // Twice what it gets at a time, for it may have to wait for others when it has got it.
        let usual = (self.kbps / 800).max(quota >> 11).clamp(16 << 10, pace::BURST.max() << 10);
        let bytes = self.burst.map_or(usual, u64::from);
        let burst = bytes.div_ceil(1 << 10);
        let needs = quota.div_ceil(1 << 22);
        if !(needs..=pace::BURST.max()).contains(&burst) {
            return Err(Error::new(format!("a burst of {bytes} bytes at {} kb/s", self.kbps)).hint(format!(
                "{} to {} bytes are possible",
                needs << 10,
                pace::BURST.max() << 10
            )));
        }
        Ok([quota, burst])
    }
}

impl Device {
    /// Queue pairs can have rates.
    pub fn has_rate_limits(&self) -> bool {
        self.limits().rates
    }
}

impl<T: Transport> Qp<Rts, T> {
    /// Sets the rate at which it may send, until it is reset, or that there is no limit. It counts at once, for what waits too.
    pub fn set_rate_limit(&self, limit: Option<RateLimit>) -> Result<()> {
        let d = &self.body.device;
        if !d.has_rate_limits() {
            let why = "this device does not do rate limits of queue pairs";
            return limit.map_or(Ok(()), |_| Err(Error::new(why)));
        }
        let [quota, burst] = limit.map_or(Ok([0, 0]), |l| l.in_units(d.clock_mhz(), d.limits().qps))?;
        // One at a time, so that what is kept is what the device has.
        let mut kept = self.body.rate.lock().unwrap_or_else(|e| e.into_inner());
        self.modify(attr::RATE_LIMIT, qp_state::RTS, &[(QUOTA, quota), (BURST, burst)])?;
        *kept = limit;
        Ok(())
    }
}

impl<S: State, T: Transport> Qp<S, T> {
    /// The rate that was set, if it has one.
    pub fn rate_limit(&self) -> Option<RateLimit> {
        *self.body.rate.lock().unwrap_or_else(|e| e.into_inner())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_are_those_of_the_device_within_half_a_percent() {
        for (mhz, qps) in [(250, 256), (250, 4096), (322, 32), (125, 1024)] {
            for kbps in [10_000, 123_457, 1_000_000, 10_000_000, 25_000_000, 50_000_000] {
                let Ok([quota, burst]) = RateLimit::kbps(kbps).in_units(mhz, qps) else {
                    assert!(kbps > 30_000_000 && qps == 4096, "{kbps}");
                    continue;
                };
                let seconds = pace_period(qps as usize) as f64 / (f64::from(mhz) * 1e6);
                let real = quota as f64 / 4096.0 * 8.0 / seconds / 1e3;
                assert!((real / kbps as f64 - 1.0).abs() < 0.005, "{real} for {kbps}");
                // As the firmware asks for it.
                assert!(burst >= 16 && burst << 22 >= quota && burst <= 255);
            }
        }
    }

    #[test]
    fn what_the_device_cannot_do_is_refused_with_what_it_can() {
        for (limit, why, hint) in [
            (RateLimit::kbps(0), "a rate of 0 kb/s", "191 to "),
            (RateLimit::kbps(189), "a rate of 189 kb/s", "191 to "),
            (RateLimit::kbps(600_000_000), "a rate of 600000000 kb/s", "511"),
            (RateLimit { kbps: 50_000_000, burst: Some(6 << 10) }, "a burst of 6144 bytes", "7168 to 261120"),
            (RateLimit { kbps: 1000, burst: Some(300_000) }, "a burst of 300000 bytes", "1024 to 261120"),
        ] {
            let e = format!("{:#}", limit.in_units(250, 256).unwrap_err());
            assert!(e.contains(why) && e.contains(hint), "{e}");
        }
        assert_eq!(RateLimit { kbps: 1000, burst: Some(1500) }.in_units(250, 256).unwrap()[1], 2);
    }
}
