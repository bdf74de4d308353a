# Downloads the wheel of cudnn-frontend and takes its headers out. Without a network the module is built all the same,
# without attention.
file(MAKE_DIRECTORY ${FOLDER})
execute_process(COMMAND ${PYTHON} -m pip download --quiet --no-deps --only-binary :all: -d ${FOLDER}
                        nvidia-cudnn-frontend==${VERSION}
                RESULT_VARIABLE failed OUTPUT_QUIET ERROR_QUIET)
file(GLOB wheel ${FOLDER}/*.whl)
if(NOT failed AND wheel)
  file(ARCHIVE_EXTRACT INPUT ${wheel} DESTINATION ${FOLDER} PATTERNS "include/*")
else()
  message(STATUS "equipoise: no CUDA attention: cudnn-frontend could not be fetched; remove ${FOLDER} to try again")
endif()
file(TOUCH ${FOLDER}/fetched)
