// The functions that a kernel may call are built-ins.
#pragma once
