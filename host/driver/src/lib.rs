//! The host driver: device, rings, doorbells, translation tables, verbs objects.
