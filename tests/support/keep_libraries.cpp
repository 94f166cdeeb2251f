// Keeps every library loaded until a program of an AddressSanitizer build ends: a test program, or a program that a
// test starts. LeakSanitizer looks for leaks at the end of the process. If the Vulkan loader had unloaded a driver by
// then, LeakSanitizer would not see the driver's static memory, and would take what that memory points to for leaked
// (128 bytes of Mesa's, seen with libvulkan_lvp.so).
extern "C" int dlclose(void* library);
extern "C" int dlclose(void* /*library*/) {
  return 0;
}
