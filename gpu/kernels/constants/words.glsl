// The macros that declare push constants and specialisation constants once for GLSL and C++. The build copies a
// kernel's declarations into headers (constants.hpp and fields.hpp say what they become in C++).
//
//   FIELDS(Name) fields... FIELDS_END
//       within a kernel's push constant block: the fields of a struct Name in C++
//   CONSTANTS(Name, first) CONSTANT(id, GLSL's name, C++'s name, default)... CONSTANTS_END
//       numbers with consecutive ids from `first` on; in C++ a struct Name
//   INVOCATIONS(id, ...)   a CONSTANT that is also the size of the workgroup
//   VALUES(Name) VALUE(GLSL's name, C++'s name, number)... VALUES_END
//       in a kernel or a file of values/: what a constant or a field may be; in C++ an enum class Name (values.hpp)
//   NUMBER(name, number)
//       in a file of values/: a number with that name in both languages
#define CONSTANTS(Name, first)
#define CONSTANT(id, glsl_name, name, value) layout(constant_id = id) const uint glsl_name = value;
#define INVOCATIONS(id, glsl_name, name, value)          \
  layout(constant_id = id) const uint glsl_name = value; \
  layout(local_size_x_id = id) in;
#define CONSTANTS_END
#define VALUES(Name)
#define VALUE(glsl_name, name, number) const uint glsl_name = number;
#define VALUES_END
#define NUMBER(name, number) const uint name = number;
#define FIELDS(Name)
#define FIELDS_END
