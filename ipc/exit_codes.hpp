// What a worker's exit code tells the daemon, also when its last message found no room. Codes of other
// programs and signals never mean more than that it ended.
#pragma once

namespace bulkhead::ipc {

inline constexpr int kExitStopped = 0;        // told to stop, or the daemon is gone
inline constexpr int kExitUsage = 2;          // started with wrong arguments
inline constexpr int kExitLoad = 3;           // the model could not be loaded
inline constexpr int kExitDeviceLost = 4;     // the device is lost or stands still
inline constexpr int kExitInternal = 5;       // anything else
inline constexpr int kExitVaultUnusable = 6;  // what it was given of a vault is of no use

}  // namespace bulkhead::ipc
