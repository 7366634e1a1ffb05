//! The rules of the protocol: responder, completer, commit, respond, requester.
