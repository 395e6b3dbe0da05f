/* For every test of the Vulkan backend: what a driver leaks is not ours. A driver that is unloaded before the leak checker of a build with
 * sanitizers looks cannot be told from our own code, so one instance holds it until the process ends. */
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
