# Fails if an object file that was compiled for one instruction set defines a weak function. The
# linker keeps one of several weak definitions, and could keep the one that needs a newer processor.
foreach(object IN LISTS OBJECTS)
  execute_process(COMMAND "${NM}" --defined-only --demangle "${object}"
    OUTPUT_VARIABLE symbols COMMAND_ERROR_IS_FATAL ANY)
  string(REGEX MATCHALL "[0-9a-f]+ [Ww] [^\n]+" weak "${symbols}")
  if(weak)
    list(JOIN weak "\n  " weak)
    message(FATAL_ERROR "${object} defines weak functions:\n  ${weak}")
  endif()
endforeach()
