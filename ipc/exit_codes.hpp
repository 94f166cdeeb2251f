// A worker's exit codes. They tell the daemon why the worker ended, even if there was no room for its last
// message. Signals and other programs' exit codes tell the daemon only that the process ended.
#pragma once

namespace bulkhead::ipc {

inline constexpr int kExitStopped = 0;        // the daemon told it to stop, or the daemon is gone
inline constexpr int kExitUsage = 2;          // started with wrong arguments
inline constexpr int kExitLoad = 3;           // the model could not be loaded
inline constexpr int kExitDeviceLost = 4;     // the device is lost or hangs
inline constexpr int kExitInternal = 5;       // anything else
inline constexpr int kExitVaultUnusable = 6;  // the worker could not use the vault that it was given

}  // namespace bulkhead::ipc
