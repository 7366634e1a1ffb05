//! The rules of the protocol: copies, responder, completer, commit, respond, requester.

mod calls;
mod commit;
mod completer;
mod completer_rules;
mod copies;
mod dispatch;
pub mod opcode;
mod records;
mod requester;
mod requester_front;
mod requester_rules;
mod requester_wqe;
mod resources;
mod respond;
mod respond_rules;
mod responder;
mod responder_rules;
pub mod sge;
mod timers;

pub use commit::Commit;
pub use completer::Completer;
pub use dispatch::Dispatch;
pub use records::Records;
pub use requester::Requester;
pub use resources::Resources;
pub use respond::Respond;
pub use responder::Responder;
pub use timers::{least_timer, turn};

#[cfg(test)]
mod completer_tests;
#[cfg(test)]
pub(crate) mod kit;
#[cfg(test)]
mod respond_tests;
#[cfg(test)]
mod responder_tests;
