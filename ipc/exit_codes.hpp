// What a worker's exit code tells the daemon, even if the worker's last message found no room. The
// codes of other programs and signals tell only that the process ended.
#pragma once

namespace bulkhead::ipc {

inline constexpr int kExitStopped = 0;        // told to stop, or the daemon is gone
inline constexpr int kExitUsage = 2;          // started with wrong arguments
inline constexpr int kExitLoad = 3;           // the model could not be loaded
inline constexpr int kExitDeviceLost = 4;     // the device is lost or stands still
inline constexpr int kExitInternal = 5;       // anything else
inline constexpr int kExitVaultUnusable = 6;  // it could not use the vault that it was given

}  // namespace bulkhead::ipc
