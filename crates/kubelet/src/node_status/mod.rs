//! What the node tells about itself: the Node object, its conditions, and its lease.
