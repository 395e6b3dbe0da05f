/* For every test of the Vulkan backend: what a driver leaks is not ours. A driver that is unloaded before the leak checker of a build with
 * sanitizers looks cannot be told from our own code, so one instance holds it until the process ends.
 * RUNNEL_TEST_CASES names the cases to run, with * and ?; the others are left out: under instrumented shaders a whole program takes long. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>
#include <vulkan/vulkan.h>

const char *__lsan_default_suppressions(void);

__attribute__((visibility("default"))) const char *__lsan_default_suppressions(void)
{
    return "leak:libvulkan\nleak:libLLVM\nleak:libVkLayer\n";
}

__attribute__((constructor)) static void hold_driver(void)
{
    static VkInstance held; // static, so that what it points to is no leak either
    const VkApplicationInfo application = {.sType = VK_STRUCTURE_TYPE_APPLICATION_INFO, .apiVersion = VK_API_VERSION_1_2};
    const VkInstanceCreateInfo info = {.sType = VK_STRUCTURE_TYPE_INSTANCE_CREATE_INFO, .pApplicationInfo = &application};
    (void)vkCreateInstance(&info, NULL, &held); // without a driver the tests skip anyway
}

__attribute__((constructor)) static void choose_cases(void)
{
    cmocka_set_test_filter(getenv("RUNNEL_TEST_CASES"));
}
