// What of it a kernel may call is built in.
#pragma once
