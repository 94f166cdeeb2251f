#ifdef BULKHEAD_UNITS
#include "persistent_units_slot.glsl"
#else
#include "persistent_lanes_slot.glsl"
#endif
