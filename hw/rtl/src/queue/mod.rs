//! Doorbells, work queues, scheduler, completions, events.
