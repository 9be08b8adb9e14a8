#pragma once

namespace torchshare {

/// Makes every later fork of the process wait until its other threads sleep. See Note [Forks].
///
/// Note [Forks]
/// A forked child has the thread that forked, and no other. A lock that another thread held is never released there. A
/// job's fork therefore keeps the others out of ops, but the op hook does not see all that an op does: at its first
/// call torch initializes static variables, each behind a lock, and registers their destructors with the C library,
/// behind another. The thread that forks holds the GIL, so that a thread which sleeps waits for the GIL, for the end of
/// the fork at the gate, or for the kernel, and holds no such lock. One that runs soon does the same. One that has had
/// a processor for 10 ms meanwhile computes for longer than any of these locks is held, and is not waited for; nor is
/// any after 2 s. Python's locks, which a thread that waits for the GIL may hold, are those of isolation/fork_locks.py.
void wait_for_sleep_at_forks();

}  // namespace torchshare
