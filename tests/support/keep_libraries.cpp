// Replaces dlclose() in the test programs of AddressSanitizer builds, and in the programs that tests start, so that
// every library stays loaded until the process ends. LeakSanitizer looks for leaks at that time. It does not see the
// static memory of a driver that the Vulkan loader has unloaded, so it would report the blocks to which that memory
// points (seen with libvulkan_lvp.so: 128 bytes).
extern "C" int dlclose(void* library);
extern "C" int dlclose(void* /*library*/) {
  return 0;
}
