# Says which folder of the product may use which. `bench` and `tests` may use all of them. A folder inside worker/ has
# its own rules; the longest folder name that matches a file decides.
set(layers
  config ipc gpu worker/model worker/constrain worker/engine worker/forward worker/sandbox worker/vault worker
  orchestrator tools)
set(may_use_config config)
set(may_use_ipc config ipc)
set(may_use_gpu config gpu)
set(may_use_worker/model config worker/model)
# The engine speaks in the channel's messages but never sees Vulkan.
set(may_use_worker/constrain config worker/model worker/constrain)
set(may_use_worker/engine config ipc worker/model worker/constrain worker/engine)
set(may_use_worker/forward config ipc gpu worker/model worker/constrain worker/engine worker/forward)
set(may_use_worker/sandbox config worker/sandbox)
set(may_use_worker/vault config worker/vault)
set(may_use_worker config ipc gpu worker worker/model worker/constrain worker/engine worker/forward worker/sandbox
  worker/vault)
set(may_use_orchestrator config ipc orchestrator)
# The bulkhead tool reads model files and tokenizers, computes how much memory they need (worker/forward), lists devices
# (gpu) and says which parts of the sandbox the kernel offers.
set(may_use_tools config ipc gpu worker/model worker/constrain worker/forward worker/engine worker/sandbox tools)

# Headers that have only data. Layers below the headers' folder may include them: a tensor type's row describes its
# blocks in a file as well as the code that kernels have for them.
set(data_headers gpu/kernels/tensor_types.hpp)

# Third-party libraries that a layer must not link, not even through another layer.
set(never_reaches_config Vulkan Boost prometheus)
set(never_reaches_ipc Vulkan Boost prometheus yaml-cpp)
set(never_reaches_gpu Boost prometheus)
# Boost is there for Boost.Multiprecision, which has headers only: the integers of chat templates have any size.
set(never_reaches_worker/model Vulkan prometheus)
set(never_reaches_worker/constrain Vulkan prometheus)
set(never_reaches_worker/engine Vulkan prometheus)
set(never_reaches_worker/sandbox Vulkan Boost prometheus)
set(never_reaches_worker/vault Vulkan Boost prometheus)
set(never_reaches_orchestrator Vulkan)

function(layer_of path result)
  set(found "")
  foreach(layer IN LISTS layers)
    string(LENGTH "${layer}" length)
    string(LENGTH "${found}" found_length)
    if("${path}/" MATCHES "^${layer}/" AND length GREATER found_length)
      set(found "${layer}")
    endif()
  endforeach()
  set(${result} "${found}" PARENT_SCOPE)
endfunction()
