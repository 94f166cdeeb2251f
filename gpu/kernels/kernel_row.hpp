// Makes a kernel from its row. A kernel whose .comp alone declares its push constants and its specialisation constants
// has a row in gpu/kernels/kernel_rows.hpp, which the build makes: a struct with Push, Constants, kName and code().
#pragma once

#include "gpu/device.hpp"
#include "gpu/kernels/kernel_rows.hpp"

namespace bulkhead::gpu::kernels {

template <typename Kernel>
KernelSpec kernel(const typename Kernel::Constants& constants) {
  return {Kernel::kName, Kernel::code(), sizeof(typename Kernel::Push), constants_of(constants), 0};
}

}  // namespace bulkhead::gpu::kernels
