// Keeps every library loaded until a program of an AddressSanitizer build ends: a test program, or a program that a
// test starts. LeakSanitizer looks for leaks at the end of the process; what a driver keeps in its own static memory
// can't be reached any more once the Vulkan loader has unloaded the driver, and would be taken for leaked (128 bytes of
// Mesa's, seen with libvulkan_lvp.so).
extern "C" int dlclose(void* library);
extern "C" int dlclose(void* /*library*/) {
  return 0;
}
