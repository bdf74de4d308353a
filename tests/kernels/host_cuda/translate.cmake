# Rewrites what is CUDA's and no C++ in SOURCE into calls of launch.h, line by line, as OUTPUT.
file(READ ${SOURCE} text)
string(REGEX REPLACE "([A-Za-z_]+)<<<" "host_cuda::configure(\\1, " text "${text}")
string(REPLACE ">>>(" ")(" text "${text}")
string(REGEX REPLACE "extern __shared__ ([a-z]+) ([a-z_]+)\\[\\];" "\\1* const \\2 = host_cuda::dynamic_shared<\\1>();"
       text "${text}")
string(REGEX REPLACE "__shared__ ([a-z]+) ([a-z_]+)\\[([A-Za-z /]+)\\];"
       "auto& \\2 = host_cuda::shared_array<\\1[\\3]>(__FILE__, __LINE__);" text "${text}")
string(REGEX REPLACE "asm volatile\\(\"mov\\.u64 %0, %%globaltimer;\" : \"=l\"\\(([a-z]+)\\)\\)"
       "\\1 = host_cuda::nanoseconds()" text "${text}")
file(WRITE ${OUTPUT} "#line 1 \"${SOURCE}\"\n${text}")
