# SPDX-License-Identifier: Apache-2.0
"""How processes become a job: settings, layout, the handshake of init(), and what each knows of it afterwards."""
